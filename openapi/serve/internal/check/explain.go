package check

import (
	"strings"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve/internal/problem"
)

// maxQuoted limits how much of a client's own text a message repeats, in bytes.
const maxQuoted = 128

// Shorten cuts text that a client chose.
func Shorten(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}

// placeOf names a parameter.
func placeOf(param *rules.Parameter) string {
	if param.In == rules.InHeader {
		return "header " + param.Name
	}
	return param.In + " parameter " + param.Name
}

// Explain says in one line which rule is broken, and where in the parameter or the body.
func Explain(place string, broken *rules.Violation) error {
	for _, step := range broken.Path {
		place += "/" + Shorten(step)
	}
	return problem.Invalid("%s: %s", place, broken.Rule)
}
