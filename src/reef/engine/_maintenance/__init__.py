"""Self-maintenance: an open writer compacts and collects its own namespace while that is small."""
