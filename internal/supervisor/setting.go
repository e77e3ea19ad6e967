package supervisor

import (
	"os"
	"strings"
)

// Setting returns what a flag of the program has, as package flag reads it where every flag takes a
// value; else what the variable has, which may be "" for none; else the default.
func Setting(flags []string, name, variable, otherwise string) string {
	if text := os.Getenv(variable); text != "" {
		otherwise = text
	}
	for len(flags) > 0 {
		given, text, inline := strings.Cut(flags[0], "=")
		flags = flags[1:]
		if !inline && len(flags) > 0 {
			text, flags = flags[0], flags[1:]
		}
		if given == "-"+name || given == "--"+name {
			otherwise = text
		}
	}
	return otherwise
}
