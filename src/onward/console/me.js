// The caller, as the server sees it.

/** {scopes, tenant, name, version}, from `/api/whoami`. */
export const me = { scopes: [], tenant: null, name: null, version: "" };

/** Whether the key has a scope: "read", "submit", "decide", "admin". */
export const may = (scope) => me.scopes.includes(scope);
