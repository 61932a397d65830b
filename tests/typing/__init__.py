"""What a type checker tells an application."""
