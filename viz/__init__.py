"""Pictures of finished reports: a Report goes in, a file comes out; nothing here computes a result."""
