// Who we are to the server.

/** {scopes, tenant, name, version}, as `/api/whoami` says. */
export const me = { scopes: [], tenant: null, name: null, version: "" };

/** Whether we may: "read", "submit", "decide", "admin". */
export const may = (scope) => me.scopes.includes(scope);
