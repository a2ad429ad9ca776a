"""Tasks to stored, graded samples."""
