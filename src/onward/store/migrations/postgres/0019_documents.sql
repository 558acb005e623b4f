-- Documents that integrations keep beside tasks: checkpoints and memories of LangGraph, sessions of other frameworks.

-- A collection belongs to one integration. Keys are ordered by their bytes, so a range of keys is a thread, a session or a namespace.
-- `tenant` is '' for documents without a tenant.
CREATE TABLE onward_documents (
    tenant     text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    data       bytea NOT NULL,
    at         float8 NOT NULL,
    PRIMARY KEY (tenant, collection, key)
);
