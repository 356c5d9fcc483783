// The scripted agent of mcp_agents.py by the npm SDK: answers queries until there is none.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const headers = { Authorization: `Bearer ${process.env.SEXTANT_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]), { requestInit: { headers } });
const client = new Client({ name: "scripted", version: "1" });
await client.connect(transport);
const call = async (name, args) => JSON.parse((await client.callTool({ name, arguments: args })).content[0].text);
for (let task; (task = await call("next_query", {})).query; ) {
  const found = (await call("search", { query: task.query, k: 5 })).map((one) => one.doc_id);
  await call("read", { doc_id: found[0] });
  await call("select", { doc_ids: found.slice(1, 3) });
  const more = (await call("search", { query: [...task.query].slice(0, 40).join("") })).map((one) => one.doc_id);
  await call("submit", { doc_ids: [...new Set([...found.reverse(), ...more])] });
}
await transport.terminateSession();
await client.close();
