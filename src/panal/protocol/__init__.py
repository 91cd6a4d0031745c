"""What travels between programs: messages, subjects, OpenAI shapes."""
