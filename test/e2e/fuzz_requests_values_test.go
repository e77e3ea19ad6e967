package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"pgregory.net/rapid"
)

// token is JSON text that no Go value stands for, such as a number of thirty digits.
type token string

// members is a JSON object that may hold a name twice, and keeps its order.
type members []member

type member struct {
	name  string
	value any
}

// text writes a value as JSON. Strings are written byte for byte, also where they are not valid
// UTF-8.
func text(value any) string {
	switch value := value.(type) {
	case token:
		return string(value)
	case members:
		var parts []string
		for _, m := range value {
			parts = append(parts, text(m.name)+":"+text(m.value))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case []any:
		var parts []string
		for _, item := range value {
			parts = append(parts, text(item))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case string:
		return quote(value)
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // nil, a boolean or a number
	}
	return string(data)
}

func quote(s string) string {
	var out bytes.Buffer
	out.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			out.WriteByte('\\')
			out.WriteByte(c)
		case c < ' ':
			fmt.Fprintf(&out, `\u%04x`, c)
		default:
			out.WriteByte(c)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// odd are strings that programs stumble over.
var odd = []string{
	"", " ", "\t", "\n", "\x00", "a\x00b", "é", "e\u0301", "\U0001F600", "\u202Egnp.exe", "\uFEFF",
	"\u2028", "\xff\xfe", "a\xc3", "\xed\xa0\x80",
	"null", "true", "0", "-1", "1e999", "NaN", "undefined", "[]", "{}", "%00", "%zz", "%2e%2e%2f",
	"%", "..", "../../etc/passwd", "~", "~nobody/x",
	"/", "//", "/.", "C:\\", "a/../../b", "$(id)", "`id`", "; true", "' OR '1'='1", "<script>",
	"\r\nX-Injected: 1", "*", "[", "[a-", "{a,", "**/**/**/**",
	"&", "=", "a=b&a=c", "+", ";", "\"", "\\", "bytes=0-0,1-1", "bytes=-",
	"bytes=9223372036854775808-", "W/\"x\"", "sha-256=:x:",
	strings.Repeat("a", 300), strings.Repeat("é", 3000), strings.Repeat("../", 400),
	strings.Repeat("a/", 2500),
}

// numbers are numbers as JSON, around the places where representations end.
var numbers = []token{
	"0", "-0", "1", "-1", "0.5", "-0.5", "1e0", "1E400", "-1e400", "1e-400", "2147483647",
	"2147483648", "-2147483649", "4294967296", "9007199254740993",
	"9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616",
	"123456789012345678901234567890", "0.1e1", "1.0",
	"99999999999999999999999999999999999999999999999999", "59", "86401",
}

func oddString(t *rapid.T, label string) string {
	if rapid.IntRange(0, 2).Draw(t, label+" kind") > 0 {
		return rapid.SampledFrom(odd).Draw(t, label)
	}
	return rapid.String().Draw(t, label)
}

// world is what a generator has about the service under test: values for names that a schema does
// not describe.
type world struct {
	texts map[string][]string // by the name of a parameter or property
}

// valid draws a value that a schema allows, as far as the schema says. The name is that of the
// parameter or property.
func (w *world) valid(t *rapid.T, schema *openapi3.Schema, name string) any {
	switch {
	case schema.Nullable && rapid.IntRange(0, 3).Draw(t, name+" is null") == 0:
		return nil
	case len(schema.Enum) > 0:
		return rapid.SampledFrom(schema.Enum).Draw(t, name)
	case len(schema.OneOf)+len(schema.AnyOf) > 0:
		return w.valid(t,
			rapid.SampledFrom(slices.Concat(schema.OneOf, schema.AnyOf)).Draw(t,
				name+" variant").Value, name)
	case len(schema.AllOf) > 0:
		var all members
		for _, part := range schema.AllOf {
			if fields, ok := w.valid(t, part.Value, name).(members); ok {
				all = append(all, fields...)
			}
		}
		return all
	case schema.Type.Is("boolean"):
		return rapid.Bool().Draw(t, name)
	case schema.Type.Is("integer"):
		return token(strconv.FormatInt(integer(t, schema, name), 10))
	case schema.Type.Is("number"):
		return rapid.Float64Range(0, 1000).Draw(t, name)
	case schema.Type.Is("array"):
		items := []any{}
		for range rapid.IntRange(int(schema.MinItems), int(schema.MinItems)+2).Draw(t,
			name+" length") {
			items = append(items, w.valid(t, schema.Items.Value, name))
		}
		return items
	case schema.Type.Is("object") || len(schema.Properties) > 0:
		return w.object(t, schema, name)
	}
	return w.string(t, schema, name)
}

// integer prefers the bounds and what lies beside them.
func integer(t *rapid.T, schema *openapi3.Schema, name string) int64 {
	low, high := int64(math.MinInt32), int64(math.MaxInt32)
	if schema.Min != nil {
		low = int64(*schema.Min)
	}
	if schema.Max != nil {
		high = int64(*schema.Max)
	}
	if rapid.Bool().Draw(t, name+" at a bound") {
		return rapid.SampledFrom([]int64{low, low + 1, high - 1, high}).Draw(t, name)
	}
	return rapid.Int64Range(low, high).Draw(t, name)
}

func (w *world) object(t *rapid.T, schema *openapi3.Schema, name string) members {
	fields := members{}
	for _, property := range slices.Sorted(maps.Keys(schema.Properties)) {
		if slices.Contains(schema.Required, property) ||
			rapid.IntRange(0, 3).Draw(t, "has "+property) == 0 {
			fields = append(fields,
				member{property, w.valid(t, schema.Properties[property].Value, property)})
		}
	}
	if extra := schema.AdditionalProperties.Schema; extra != nil {
		for i := range rapid.IntRange(0, 3).Draw(t, name+" entries") {
			key := rapid.SampledFrom(append(w.texts[name+" key"], "a", "b-c", "D_E", "x.y/z",
				odd[i])).Draw(t, name+" key")
			fields = append(fields, member{key, w.valid(t, extra.Value, name+" value")})
		}
	}
	return fields
}

// samples are strings for patterns, of which a generator finds none by chance.
var samples = []string{"100m", "0.5", "1", "2", "128Mi", "256Mi", "1Gi", "512M", "0", "00001m",
	"9999999999999999", "0.000001", "1Ti"}

func (w *world) string(t *rapid.T, schema *openapi3.Schema, name string) string {
	if known := w.texts[name]; len(known) > 0 &&
		rapid.IntRange(0, 3).Draw(t, name+" is known") > 0 {
		return rapid.SampledFrom(known).Draw(t, name)
	}
	if schema.Format == "date-time" {
		from := rapid.Int64Range(-100_000, 200_000).Draw(t, name+" in seconds")
		zone := rapid.SampledFrom([]*time.Location{time.UTC,
			time.FixedZone("", 5*3600+1800)}).Draw(t, name+" zone")
		return time.Now().Add(time.Duration(from) * time.Second).In(zone).Format(time.RFC3339Nano)
	}
	if schema.Pattern != "" {
		pattern := regexp.MustCompile(schema.Pattern)
		fitting := slices.DeleteFunc(slices.Clone(samples),
			func(s string) bool { return !pattern.MatchString(s) })
		if example, ok := schema.Example.(string); ok {
			fitting = append(fitting, example)
		}
		if len(fitting) > 0 {
			return rapid.SampledFrom(fitting).Draw(t, name)
		}
	}
	if example, ok := schema.Example.(string); ok &&
		rapid.Bool().Draw(t, name+" as in the example") {
		return example
	}
	longest := 40
	if schema.MaxLength != nil {
		longest = int(*schema.MaxLength)
	}
	return rapid.StringN(int(schema.MinLength), longest, -1).Draw(t, name)
}

// spoil draws a change of a value at some place below it, which most schemas refuse.
func spoil(t *rapid.T, value any) any {
	if deeper := rapid.IntRange(0, 2).Draw(t, "deeper") > 0; deeper {
		switch value := value.(type) {
		case members:
			if len(value) > 0 {
				i := rapid.IntRange(0, len(value)-1).Draw(t, "member")
				return spoilMember(t, slices.Clone(value), i)
			}
		case []any:
			if len(value) > 0 {
				i := rapid.IntRange(0, len(value)-1).Draw(t, "item")
				changed := slices.Clone(value)
				changed[i] = spoil(t, changed[i])
				return changed
			}
		}
	}
	switch rapid.IntRange(0, 6).Draw(t, "another value") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "boolean")
	case 2:
		return rapid.SampledFrom(numbers).Draw(t, "number")
	case 3:
		return []any{value, value}
	case 4:
		return members{{oddString(t, "name"), value}}
	case 5:
		depth := rapid.SampledFrom([]int{10, 1000, 9999, 20000}).Draw(t, "depth")
		return token(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	return oddString(t, "string")
}

func spoilMember(t *rapid.T, object members, i int) members {
	chosen := object[i]
	switch rapid.IntRange(0, 6).Draw(t, "change of "+chosen.name) {
	case 0:
		return slices.Delete(object, i, i+1)
	case 1: // the same name twice
		return append(object, member{chosen.name, spoil(t, chosen.value)})
	case 2: // a name that differs in case alone
		return append(object, member{strings.ToUpper(chosen.name), spoil(t, chosen.value)})
	case 3:
		return append(object, member{oddString(t, "name"), chosen.value})
	case 4:
		object[i].value = rapid.SampledFrom(numbers).Draw(t, chosen.name)
	case 5:
		object[i].value = oddString(t, chosen.name)
	default:
		object[i].value = spoil(t, chosen.value)
	}
	return object
}

// spoilText draws a change of a body as a whole.
func spoilText(t *rapid.T, body string) string {
	switch rapid.IntRange(0, 8).Draw(t, "change of the body") {
	case 0:
		return body[:rapid.IntRange(0, len(body)).Draw(t, "cut at")]
	case 1:
		return body + rapid.SampledFrom([]string{"x", "{}", ",", "\x00", " \n"}).Draw(t, "behind")
	case 2:
		return "\uFEFF" + body
	case 3:
		return ""
	case 4:
		return rapid.SampledFrom([]string{" ", "null", "0", "[]", "{}", `""`, "{", "{\"a\"", "\xff",
			"nul", "{'a':1}", "<a/>", "a=b"}).Draw(t, "instead")
	case 5:
		return `{"a":"` + strings.Repeat("x",
			rapid.SampledFrom([]int{1 << 20, 9 << 20}).Draw(t, "size")) + `"}`
	case 6:
		return strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	case 7:
		at := rapid.IntRange(0, len(body)).Draw(t, "at")
		return body[:at] +
			rapid.SampledFrom([]string{"\x00", "\xff", "\"", "\\", "}", "\n"}).Draw(t,
				"inserted") + body[at:]
	}
	return body
}
