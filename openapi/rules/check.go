package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The types of a schema.
const (
	TypeObject  = "object"
	TypeArray   = "array"
	TypeString  = "string"
	TypeInteger = "integer"
	TypeNumber  = "number"
	TypeBoolean = "boolean"
)

// The formats that are checked. Others are notes to readers.
const (
	FormatDateTime = "date-time"
	FormatInt32    = "int32"
	FormatInt64    = "int64"
)

// Schema is what a value must be. The zero value accepts everything but null.
type Schema struct {
	Type          string // "" is any
	Format        string
	Nullable      bool
	Enum          []string
	Minimum       Bound
	Maximum       Bound
	MinLength     int // in characters
	MaxLength     int // as of the other limits, 0 is none
	Pattern       string
	Example       string // of a string with a Pattern: what its violation shows
	Words         string // description of the Pattern for people; violations show it in place of the Pattern
	MinItems      int
	MaxItems      int
	Items         *Schema
	MaxProperties int
	Properties    []Property // sorted by name
	Required      []string
	Others        *Schema // schema of other properties; nil: anything
	Closed        bool    // there are no other properties
	OneOf         []*Schema
	AllOf         []*Schema
}

// Bound is a limit of a number, which may be 0.
type Bound struct {
	Set   bool
	Value float64
}

// Property is a property of an object.
type Property struct {
	Name   string
	Schema *Schema
}

// property returns the schema of a property, nil when the object has none of that name.
func (s *Schema) property(name string) *Schema {
	i, found := slices.BinarySearchFunc(s.Properties, name, func(p Property, name string) int { return strings.Compare(p.Name, name) })
	if !found {
		return nil
	}
	return s.Properties[i].Schema
}

// Violation is a rule that a value breaks.
type Violation struct {
	// Path leads to the place in the value: names of properties and numbers of items. The client
	// may have chosen them.
	Path []string
	// Rule says in words what is demanded there. It holds nothing of the value.
	Rule string
}

func broken(format string, args ...any) *Violation {
	return &Violation{Rule: fmt.Sprintf(format, args...)}
}

// below returns the violation as one of the value that holds the place.
func (v *Violation) below(step string) *Violation {
	if v != nil {
		v.Path = slices.Insert(v.Path, 0, step)
	}
	return v
}

// CheckText checks the values that a request has for the parameter, none when it has none. Only an
// array may have several. It returns nil when no rule is broken.
func (p *Parameter) CheckText(values []string) *Violation {
	if len(values) == 0 {
		if p.Required {
			return broken("is required")
		}
		return nil
	}
	if p.Schema.Type != TypeArray {
		value, violation := parseText(values[0], p.Schema)
		switch {
		case violation != nil:
			return violation
		case value == nil:
			return broken("must not be empty")
		}
		return p.Schema.Check(value)
	}
	items := make([]any, 0, len(values))
	for i, text := range values {
		item, violation := parseText(text, p.Schema.Items)
		if violation != nil {
			return violation.below(strconv.Itoa(i))
		}
		if item == nil || text == "" && len(values) == 1 {
			return broken("must not be empty")
		}
		items = append(items, item)
	}
	return p.Schema.Check(items)
}

// parseText returns the value of the schema's type that the text stands for, nil for no text where
// the type is not a string.
func parseText(text string, schema *Schema) (value any, violation *Violation) {
	if schema.Type == TypeString {
		return text, nil
	}
	if text == "" {
		return nil, nil
	}
	var err error
	article := "a "
	switch schema.Type {
	case TypeInteger:
		article = "an "
		bits := 64
		if schema.Format == FormatInt32 {
			bits = 32
		}
		_, err = strconv.ParseInt(text, 10, bits)
		value = json.Number(text)
	case TypeNumber:
		var number float64
		if number, err = strconv.ParseFloat(text, 64); math.IsNaN(number) || math.IsInf(number, 0) && err == nil {
			err = strconv.ErrSyntax // JSON has neither
		}
		value = json.Number(text)
	case TypeBoolean:
		value, err = strconv.ParseBool(text)
	default:
		return nil, broken("schema has non primitive type %s", schema.Type)
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return nil, broken("number is too large")
	case err != nil:
		return nil, broken("value must be %s%s", article, schema.Type)
	}
	return value, nil
}

// Check checks a value as encoding/json decodes it with UseNumber. It returns nil when no rule is
// broken, else the first that is.
func (s *Schema) Check(value any) *Violation {
	if value == nil && s.Nullable {
		return nil
	}
	if len(s.OneOf) > 0 {
		matches := 0
		for _, one := range s.OneOf {
			if one.Check(value) == nil {
				matches++
			}
		}
		if matches != 1 {
			return broken("value must match exactly one of the allowed forms")
		}
	}
	for _, one := range s.AllOf {
		if violation := one.Check(value); violation != nil {
			return violation
		}
	}
	if value == nil {
		if len(s.OneOf)+len(s.AllOf) > 0 { // they have allowed it
			return nil
		}
		return broken("must not be null")
	}
	if len(s.Enum) > 0 {
		if text, ok := value.(string); !ok || !slices.Contains(s.Enum, text) {
			allowed, _ := json.Marshal(s.Enum) // strings always can be encoded
			return broken("value must be one of %s", allowed)
		}
	}
	switch value := value.(type) {
	case bool:
		return s.expect(TypeBoolean)
	case json.Number:
		return s.checkNumber(value)
	case string:
		return s.checkString(value)
	case []any:
		return s.checkArray(value)
	case map[string]any:
		return s.checkObject(value)
	}
	return broken("unhandled value of type %T", value)
}

// expect returns nil when the schema permits one of the types.
func (s *Schema) expect(types ...string) *Violation {
	if s.Type == "" || slices.Contains(types, s.Type) {
		return nil
	}
	article := "a"
	switch s.Type {
	case TypeArray, TypeObject, TypeInteger:
		article = "an"
	}
	return broken("value must be %s %s", article, s.Type)
}

func (s *Schema) checkNumber(number json.Number) *Violation {
	value, err := number.Float64()
	if err != nil {
		return broken("number is too large")
	}
	if violation := s.expect(TypeInteger, TypeNumber); violation != nil {
		return violation
	}
	if s.Type == TypeInteger {
		if value != math.Trunc(value) {
			return broken("value must be an integer")
		}
		// 2^63 is what the largest integer becomes as a float64.
		if s.Format == FormatInt32 && (value < math.MinInt32 || value > math.MaxInt32) ||
			s.Format == FormatInt64 && (value < math.MinInt64 || value > math.MaxInt64) {
			return broken("must be a valid %s", s.Format)
		}
	}
	if s.Minimum.Set && value < s.Minimum.Value {
		return broken("number must be at least %g", s.Minimum.Value)
	}
	if s.Maximum.Set && value > s.Maximum.Value {
		return broken("number must be at most %g", s.Maximum.Value)
	}
	return nil
}

func (s *Schema) checkString(value string) *Violation {
	if violation := s.expect(TypeString); violation != nil {
		return violation
	}
	length := utf8.RuneCountInString(value)
	switch {
	case length < s.MinLength:
		return broken("minimum string length is %d", s.MinLength)
	case s.MaxLength > 0 && length > s.MaxLength:
		return broken("maximum string length is %d", s.MaxLength)
	case s.Pattern != "" && !compiled(s.Pattern).MatchString(value):
		if s.Words != "" {
			return broken(`must be %s; an example is "%s"`, s.Words, s.Example)
		}
		if s.Example != "" {
			return broken(`string doesn't match the regular expression "%s"; an example is "%s"`, s.Pattern, s.Example)
		}
		return broken(`string doesn't match the regular expression "%s"`, s.Pattern)
	case s.Format == FormatDateTime:
		// Only the second one refuses the 30th of February and an offset of 99 hours, only the
		// first one a comma before the fraction.
		if _, err := time.Parse(time.RFC3339, value); err != nil || !compiled(dateTime).MatchString(value) {
			return broken("must be a valid %s", s.Format)
		}
	}
	return nil
}

func (s *Schema) checkArray(value []any) *Violation {
	if violation := s.expect(TypeArray); violation != nil {
		return violation
	}
	switch {
	case len(value) < s.MinItems:
		return broken("minimum number of items is %d", s.MinItems)
	case s.MaxItems > 0 && len(value) > s.MaxItems:
		return broken("maximum number of items is %d", s.MaxItems)
	case s.Items == nil:
		return nil
	}
	for i, item := range value {
		if violation := s.Items.Check(item); violation != nil {
			return violation.below(strconv.Itoa(i))
		}
	}
	return nil
}

func (s *Schema) checkObject(value map[string]any) *Violation {
	if violation := s.expect(TypeObject); violation != nil {
		return violation
	}
	if s.MaxProperties > 0 && len(value) > s.MaxProperties {
		return broken("there must be at most %d properties", s.MaxProperties)
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		schema := s.property(name)
		switch {
		case schema == nil && s.Closed:
			return broken("unknown field").below(name)
		case schema == nil:
			schema = s.Others
		}
		if schema == nil {
			continue
		}
		if violation := schema.Check(value[name]); violation != nil {
			return violation.below(name)
		}
	}
	for _, name := range s.Required {
		if _, ok := value[name]; !ok {
			return broken("is required").below(name)
		}
	}
	return nil
}

// dateTime is the form of RFC 3339, section 5.6.
const dateTime = `^[0-9]{4}-(0[1-9]|10|11|12)-(0[1-9]|[12][0-9]|3[01])T([0-1][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?(Z|(\+|-)[0-9]{2}:[0-9]{2})$`

var patterns sync.Map // regular expressions by their text

// compiled returns a regular expression of a contract, which openapi/slim has compiled before.
func compiled(pattern string) *regexp.Regexp {
	if found, ok := patterns.Load(pattern); ok {
		return found.(*regexp.Regexp)
	}
	fresh := regexp.MustCompile(pattern)
	patterns.Store(pattern, fresh)
	return fresh
}

// String is the rule and its place, for logs and tests.
func (v *Violation) String() string {
	var text strings.Builder
	for _, step := range v.Path {
		text.WriteString("/" + step)
	}
	return text.String() + ": " + v.Rule
}
