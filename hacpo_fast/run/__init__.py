"""What a run says about itself: files, terminal and curves. Light to import; each module loads what it needs, late."""
