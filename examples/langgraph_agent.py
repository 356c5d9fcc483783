"""A LangGraph graph, made from the tools and the model of the run: the model calls tools until it has an answer.

Try it, without a key:

    sextant run --program examples/langgraph_agent.py:build --task congress
"""

from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode


def build(model, tools):
    def think(state: MessagesState):
        return {"messages": [model.bind_tools(tools).invoke(state["messages"])]}

    def act_or_end(state: MessagesState):
        return "act" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", act_or_end)
    graph.add_edge("act", "think")
    return graph
