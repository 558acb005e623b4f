// A certified OpenID provider (oidc-provider) for tests: `node provider.mjs PORT CONFIG`. CONFIG is JSON: {client_id, client_secret,
// redirect_uris, accounts: {LOGIN: {claims}}, in_id_token}. It prints one line when it answers. Its own pages ask for a login and a consent.

import { Provider } from "oidc-provider";

const [port, text] = process.argv.slice(2);
const config = JSON.parse(text);
const issuer = `http://localhost:${port}`;
const secret = config.client_secret;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: config.client_id,
      ...(secret ? { client_secret: secret, token_endpoint_auth_method: "client_secret_basic" } : { token_endpoint_auth_method: "none" }),
      redirect_uris: config.redirect_uris,
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  pkce: { required: () => true },
  conformIdTokenClaims: !config.in_id_token, // true: groups and the email address come from the endpoint for claims alone
  claims: { openid: ["sub", "groups", "org"], email: ["email", "email_verified"], profile: ["name"] },
  async findAccount(_context, login) {
    const claims = config.accounts[login];
    return claims && { accountId: login, claims: async () => ({ sub: login, ...claims }) };
  },
  features: { devInteractions: { enabled: true } },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
