// The caller, as the server sees it.

/** {scopes, tenant, name, person, roles, version, environment}, from `/api/whoami`. */
export const me = { scopes: [], tenant: null, name: null, person: null, roles: [], version: "", environment: "" };

/** The name without the id behind it, which a person has in journals and in the audit log. */
export const shortName = () => (me.person && me.name.endsWith(` (${me.person})`) ? me.name.slice(0, -me.person.length - 3) : me.name);

/** The caller in a sentence about what it may do. */
export const mine = () => (me.person ? "Your role" : "Your key");

/** Whether the key or the person has a scope: "read", "submit", "decide", "admin". */
export const may = (scope) => me.scopes.includes(scope);

/** The title of the browser's tab: the page, and the name of the installation where it has one. */
export function setTitle(page) {
  document.title = [page, me.environment && me.environment.slice(0, 40), "Onward"].filter(Boolean).join(" · ");
}
