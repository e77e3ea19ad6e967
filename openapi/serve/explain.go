package serve

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
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
func placeOf(param *openapi3.Parameter) string {
	if param.In == openapi3.ParameterInHeader {
		return "header " + param.Name
	}
	return param.In + " parameter " + param.Name
}

// explainParameter says in one line which parameter breaks which rule. An error that
// is not the client's is returned as it is.
func explainParameter(param *openapi3.Parameter, err error) error {
	place := placeOf(param)
	var broken *openapi3.SchemaError
	var unparsed *openapi3filter.ParseError
	switch {
	case errors.Is(err, openapi3filter.ErrInvalidRequired):
		return Invalid("%s: is required", place)
	case errors.Is(err, openapi3filter.ErrInvalidEmptyValue):
		return Invalid("%s: must not be empty", place)
	case errors.As(err, &broken):
		return explainSchema(place, broken)
	case errors.As(err, &unparsed):
		return explainParse(place, unparsed)
	}
	return fmt.Errorf("validate %s: %w", place, err)
}

// explainBody does for a body what explainParameter does for a parameter.
func explainBody(err error) error {
	var broken *openapi3.SchemaError
	if errors.As(err, &broken) {
		return explainSchema("body", broken)
	}
	return fmt.Errorf("validate body: %w", err)
}

// explainParse reports text that is no value of the parameter's type.
func explainParse(place string, err *openapi3filter.ParseError) error {
	for _, step := range err.Path() {
		place += fmt.Sprintf("/%v", step)
	}
	for {
		inner, ok := err.Cause.(*openapi3filter.ParseError)
		if !ok {
			break
		}
		err = inner
	}
	if errors.Is(err, strconv.ErrRange) {
		return Invalid("%s: number is too large", place)
	}
	if kind, ok := strings.CutPrefix(err.Reason, "an invalid "); ok {
		return Invalid("%s: value must be %s", place, withArticle(kind))
	}
	return Invalid("%s: %s", place, err.Reason)
}

func withArticle(noun string) string {
	if strings.HasPrefix(noun, "i") {
		return "an " + noun
	}
	return "a " + noun
}

// explainSchema puts a broken rule into words. The library's own message would carry
// the whole schema and the client's value.
func explainSchema(place string, err *openapi3.SchemaError) error {
	// Behind "not all of these schemas" stands the rule that a person can act on.
	for err.SchemaField == "allOf" {
		var inner *openapi3.SchemaError
		if !errors.As(err.Origin, &inner) {
			break
		}
		err = inner
	}
	for _, step := range err.JSONPointer() {
		place += "/" + shorten(step)
	}
	return Invalid("%s", ruleOf(place, err))
}

func ruleOf(place string, err *openapi3.SchemaError) string {
	switch err.SchemaField {
	case "required":
		return place + ": is required"
	case "nullable":
		return place + ": must not be null"
	case "properties":
		quoted, qerr := strconv.QuotedPrefix(strings.TrimPrefix(err.Reason, "property "))
		name, uerr := strconv.Unquote(quoted)
		if qerr == nil && uerr == nil {
			return place + "/" + shorten(name) + ": unknown field"
		}
	case "enum":
		if err.Value == nil {
			return place + ": must not be null"
		}
		allowed := strings.TrimPrefix(err.Reason, "value is not one of the allowed values ")
		return place + ": value must be one of " + allowed
	case "format":
		return place + ": must be a valid " + err.Schema.Format
	case "oneOf":
		return place + ": value must match exactly one of the allowed forms"
	case "anyOf":
		return place + ": value must match one of the allowed forms"
	case "not":
		return place + ": value is not allowed"
	}
	return place + ": " + err.Reason
}
