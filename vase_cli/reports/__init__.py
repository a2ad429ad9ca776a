"""Reports for people: tables, figures and pages."""
