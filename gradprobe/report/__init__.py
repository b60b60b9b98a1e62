"""One Report in each of its forms. Every form is a function from a Report to a value; nothing here measures or prints."""
