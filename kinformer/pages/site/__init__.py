"""Documentation as Markdown: pages of parts, members, commands, claims, laws, topics and terms."""
