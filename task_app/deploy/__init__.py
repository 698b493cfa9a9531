"""Task apps and training on machines elsewhere (Modal). What runs there is what runs here."""
