package command

import (
	"strings"

	"sandbox.internal/execd/internal/invalid"
)

// check refuses a spec unless it has a command line, or a program that can be passed to the kernel.
func (s Spec) check() error {
	line := s.Command
	if len(s.Argv) > 0 {
		line = s.Argv[0]
	}
	switch {
	case strings.TrimSpace(line) == "":
		return invalid.Errorf("command: must not be empty")
	case strings.ContainsRune(line, 0):
		return invalid.Errorf("command: must not contain a NUL byte")
	}
	for i, arg := range s.Argv {
		if strings.ContainsRune(arg, 0) {
			return invalid.Errorf("args[%d]: must not contain a NUL byte", i-1)
		}
	}
	return nil
}

// content returns the command line that has the same effect, for people.
func (s Spec) content() string {
	if s.Argv == nil {
		return s.Command
	}
	words := make([]string, len(s.Argv))
	for i, arg := range s.Argv {
		words[i] = quoted(arg)
	}
	return strings.Join(words, " ")
}

// plain are the characters of words that a shell does not change.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_"

// quoted returns the text as one word of a shell.
func quoted(text string) string {
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
