"""The declaration of a pipeline, from headrace.toml to frozen dataclasses, and its checks."""
