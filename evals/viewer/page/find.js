// The search of a run (search.js), as the first section of its page.

addPanel("search", ({ id, exported, state, set }) => findSection([id], state.find, set("find"), exported));
