package config

import (
	"fmt"
	"reflect"
)

// decodeTable moves a parsed table into a struct with toml tags. The decoder of
// go-toml stops at the first value of a wrong type and takes keys in any case;
// this reports all of them and takes a key only as it is documented.
func decodeTable(p *problems, path string, in map[string]any, out reflect.Value) {
	fields := make(map[string]int)
	for name, i := range taggedFields(out.Type()) {
		fields[name] = i
	}
	for name, value := range in {
		key := joinKey(path, name)
		if i, ok := fields[name]; ok {
			decodeValue(p, key, value, out.Field(i))
			continue
		}
		what := "unknown key"
		if _, ok := value.(map[string]any); ok {
			what = "unknown section"
		}
		if near := nearestKey(key); near != "" {
			what += "; did you mean " + near + "?"
		}
		p.add(key, "%s", what)
	}
}

func decodeValue(p *problems, key string, in any, out reflect.Value) {
	wrong := func(want string) { p.add(key, "must be %s (got %s)", want, describe(in)) }
	switch out.Kind() {
	case reflect.Pointer: // a section that may be absent
		out.Set(reflect.New(out.Type().Elem()))
		decodeValue(p, key, in, out.Elem())
	case reflect.Struct:
		if table, ok := in.(map[string]any); ok {
			decodeTable(p, key, table, out)
		} else {
			wrong("a section")
		}
	case reflect.Slice:
		items, ok := in.([]any)
		if !ok {
			wrong("an array")
			return
		}
		out.Set(reflect.MakeSlice(out.Type(), len(items), len(items)))
		for i, item := range items {
			decodeValue(p, element(key, i), item, out.Index(i))
		}
	case reflect.String:
		if s, ok := in.(string); ok {
			out.SetString(s)
		} else {
			wrong("a string")
		}
	case reflect.Bool:
		if b, ok := in.(bool); ok {
			out.SetBool(b)
		} else {
			wrong("true or false")
		}
	case reflect.Int, reflect.Int64:
		if n, ok := in.(int64); ok && !out.OverflowInt(n) {
			out.SetInt(n)
		} else {
			wrong("an integer")
		}
	default:
		panic(fmt.Sprintf("config: field %s has kind %s, which decodeValue does not support", key,
			out.Kind()))
	}
}

// describe names the type and not the value, which may be a secret.
func describe(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case float64:
		return "a decimal number"
	case []any:
		return "an array"
	case map[string]any:
		return "a section"
	default:
		return "a date or time"
	}
}

// taggedFields yields the TOML name and the index of each field.
func taggedFields(t reflect.Type) func(yield func(string, int) bool) {
	return func(yield func(string, int) bool) {
		for i := range t.NumField() {
			if name := t.Field(i).Tag.Get("toml"); name != "-" && !yield(name, i) {
				return
			}
		}
	}
}
