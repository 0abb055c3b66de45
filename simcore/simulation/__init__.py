"""Parts of an answer put together: the report, random routing and lengths, hosts, details, explanations."""
