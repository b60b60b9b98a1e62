"""Forms of a Report: functions of it that neither measure nor print."""
