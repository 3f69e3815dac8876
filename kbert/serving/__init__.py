"""SavedModels that answer raw text."""
