"""One HTML page that shows runs: curves, samples, settings and environment, without network or server."""
