"""The local page on which features flow through a network; `server.serve` opens it."""
