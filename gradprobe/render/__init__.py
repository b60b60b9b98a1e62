"""One Report in each of its forms: functions from a Report to a value. Nothing here measures or prints."""
