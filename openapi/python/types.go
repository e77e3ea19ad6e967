package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/getkin/kin-openapi/openapi3"
)

// module is what the template shows.
type module struct {
	Contract, Title string
	Choices         []choice
	Classes         []class
	Calls           []call
}

// choice is a named set of strings.
type choice struct{ Name, Type, Doc string }

// class is an object of the contract.
type class struct {
	Name, Doc string
	Fields    []field
	Renamed   []field // those with another name in JSON
}

type field struct {
	Name, JSON, Type, Doc string
	Required, Secret      bool
}

// Default is what follows the type in a class. The value of a secret is not shown when an object is
// printed.
func (f field) Default() string {
	switch {
	case f.Secret && f.Required:
		return " = field(repr=False)"
	case f.Secret:
		return " = field(repr=False, default=None)"
	case f.Required:
		return ""
	}
	return " = None"
}

// addSchemas adds the named types of the contract, in the order of their names.
func (m *module) addSchemas(doc *openapi3.T) error {
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		ref := doc.Components.Schemas[name]
		switch s := ref.Value; {
		case isChoice(s):
			c := choice{name, literal(s), docstring(s.Description, "")}
			m.Choices = append(m.Choices, c)
		case isClass(s):
			c, err := newClass(name, s)
			if err != nil {
				return err
			}
			m.Classes = append(m.Classes, c)
		}
	}
	return nil
}

func newClass(name string, s *openapi3.Schema) (class, error) {
	c := class{Name: name, Doc: docstring(s.Description, "    ")}
	for _, property := range slices.Sorted(maps.Keys(s.Properties)) {
		ref := s.Properties[property]
		kind, err := typeOf(ref)
		if err != nil {
			return c, fmt.Errorf("%s.%s: %w", name, property, err)
		}
		text := ref.Value.Description
		f := field{
			Name: snake(property), JSON: property, Type: kind, Doc: docstring(text, "    "),
			Required: slices.Contains(s.Required, property),
			// A contract has no other mark for the secrets of an answer, which are texts.
			Secret: ref.Value.Format == "password" || property == "secret" ||
				(kind == "str" || kind == "Mapping[str, str]") && strings.Contains(text, "secret"),
		}
		if !f.Required || ref.Value.Nullable {
			f.Type = optional(kind)
		}
		c.Fields = append(c.Fields, f)
		if f.Name != f.JSON {
			c.Renamed = append(c.Renamed, f)
		}
	}
	return c, nil
}

// optional is a type that may be None.
func optional(kind string) string { return kind + " | None" }

func isChoice(s *openapi3.Schema) bool { return s.Type.Is("string") && literal(s) != "str" }

// isClass: an object with fields. One that is made by hand, part by part, as the form of an upload,
// has no class.
func isClass(s *openapi3.Schema) bool {
	if len(s.Properties) == 0 {
		return false
	}
	for _, property := range s.Properties {
		if property.Value.Format == "binary" {
			return false
		}
	}
	return true
}

// typeOf is the Python type of a schema. A reference to a class or a choice is its name.
func typeOf(ref *openapi3.SchemaRef) (string, error) {
	s := ref.Value
	if ref.Ref != "" && (isChoice(s) || isClass(s)) {
		return ref.Ref[strings.LastIndexByte(ref.Ref, '/')+1:], nil
	}
	switch {
	case s.Type.Is("string"):
		switch s.Format {
		case "date-time":
			return "datetime", nil
		case "byte", "binary":
			return "bytes", nil
		}
		return literal(s), nil
	case s.Type.Is("integer"):
		return "int", nil
	case s.Type.Is("number"):
		return "float", nil
	case s.Type.Is("boolean"):
		return "bool", nil
	case s.Type.Is("array"):
		item, err := typeOf(s.Items)
		return "Sequence[" + item + "]", err
	case s.Type.Is("object") && s.AdditionalProperties.Schema != nil:
		value := s.AdditionalProperties.Schema
		kind, err := typeOf(value)
		if value.Value.Nullable {
			kind = optional(kind)
		}
		return "Mapping[str, " + kind + "]", err
	case s.Type.Is("object") && s.AdditionalProperties.Has != nil && *s.AdditionalProperties.Has:
		return "Mapping[str, Any]", nil
	case s.Type.Is("object") && len(s.Properties) == 0:
		return "None", nil // an empty object says nothing
	}
	return "", fmt.Errorf("there is no Python type for the schema %q", s.Description)
}

// literal is the type of a string with a set of values. A set that may grow allows any other string
// too.
func literal(s *openapi3.Schema) string {
	var values []string
	open := ""
	for _, value := range s.Enum {
		values = append(values, fmt.Sprintf("%q", value))
	}
	if known, ok := s.Extensions["x-known-values"].([]any); ok {
		open = " | str"
		for _, value := range known {
			values = append(values, fmt.Sprintf("%q", value.(map[string]any)["value"]))
		}
	}
	if len(values) == 0 {
		return "str"
	}
	return "Literal[" + strings.Join(values, ", ") + "]" + open
}

// keywords cannot be names.
var keywords = strings.Fields(`False None True and as assert async await break class continue def
	del elif else except finally for from global if import in is lambda nonlocal not or pass raise
	return try while with yield`)

// snake is a name as Python writes it: sandboxId is sandbox_id, Last-Event-ID is last_event_id.
func snake(name string) string {
	var out strings.Builder
	letters := []rune(strings.ReplaceAll(name, "-", "_"))
	for i, letter := range letters {
		upper := unicode.IsUpper(letter)
		if upper && i > 0 && letters[i-1] != '_' &&
			(unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(letter))
	}
	if slices.Contains(keywords, out.String()) {
		return out.String() + "_"
	}
	return out.String()
}

// docstring is a text as a Python string of documentation.
func docstring(text, indent string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), `\`, `\\`)
	if strings.HasSuffix(text, `"`) {
		text += " "
	}
	lines := strings.Split(text, "\n")
	if len(lines) == 1 {
		return `"""` + text + `"""`
	}
	for i, line := range lines {
		if i > 0 && line != "" {
			lines[i] = indent + line
		}
	}
	return `"""` + strings.Join(lines, "\n") + "\n" + indent + `"""`
}
