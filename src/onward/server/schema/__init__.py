"""The schema of the HTTP API: request and response models, and the OpenAPI document."""
