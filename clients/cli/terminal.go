package cli

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// terminalOf returns the file descriptor of a stream that is a terminal.
func terminalOf(stream any) (fd int, ok bool) {
	file, isFile := stream.(*os.File)
	if !isFile {
		return 0, false
	}
	fd = int(file.Fd())
	return fd, term.IsTerminal(fd)
}

func isTerminal(stream any) bool {
	_, ok := terminalOf(stream)
	return ok
}

const defaultWidth = 80

// width is how many columns the standard output has; 80 where it is no terminal.
func (t *tool) width() int {
	if n, err := strconv.Atoi(t.Env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if fd, ok := terminalOf(t.Stdout); ok {
		if columns, _, err := term.GetSize(fd); err == nil && columns > 0 {
			return columns
		}
	}
	return defaultWidth
}

// asciiLocale reports whether the environment asks for a locale that only has ASCII.
func asciiLocale(env func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := env(name); value != "" {
			return value == "C" || value == "POSIX" || strings.HasSuffix(value, ".ASCII")
		}
	}
	return false
}
