"""What people read: tables, figures and pages."""
