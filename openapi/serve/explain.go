package serve

import (
	"strings"

	"sandbox.internal/openapi/rules"
)

// maxQuoted limits how much of a client's own text a message repeats, in bytes.
const maxQuoted = 128

// shorten cuts text that a client chose.
func shorten(s string) string {
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

// explain says in one line which rule is broken, and where in the parameter or the body.
func explain(place string, broken *rules.Violation) error {
	for _, step := range broken.Path {
		place += "/" + shorten(step)
	}
	return Invalid("%s: %s", place, broken.Rule)
}
