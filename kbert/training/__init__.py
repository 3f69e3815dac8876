"""What happens around a step."""
