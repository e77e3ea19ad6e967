// Package show prints results: as tables that fit a terminal, and as JSON and YAML, without what a
// terminal would take for commands.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
)

// The values of --output.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
	FormatName  = "name"
)

// Formats are all of them.
var Formats = []string{FormatTable, FormatWide, formatJSON, formatYAML, FormatName}

// Printer prints results.
type Printer struct {
	Out     io.Writer
	Format  string
	Quiet   bool
	ASCII   bool       // the locale has no other characters
	Columns func() int // of the terminal; 0 where there is room for all
}

// Structured reports whether results are printed for programs.
func (o Printer) Structured() bool {
	return !o.Quiet && (o.Format == formatJSON || o.Format == formatYAML)
}

// View is how values of one type are printed.
type View[T any] struct {
	Columns []Column[T]
	ID      func(T) string
	Name    func(T) string // for `-o name`; nil means the id
}

// All prints several values.
func All[T any](o Printer, v View[T], items []T) error {
	if o.Structured() {
		if items == nil {
			items = []T{}
		}
		return o.ShowValue(items)
	}
	return Text(o, v, items)
}

// Item prints a value, which as JSON or YAML is no list.
func Item[T any](o Printer, v View[T], item T) error {
	if o.Structured() {
		return o.ShowValue(item)
	}
	return Text(o, v, []T{item})
}

// Text prints values for people, or their names.
func Text[T any](o Printer, v View[T], items []T) error {
	label := v.ID
	if !o.Quiet && v.Name != nil {
		label = v.Name
	}
	if o.Quiet || o.Format == FormatName {
		for _, item := range items {
			if _, err := fmt.Fprintln(o.Out, o.Clean(label(item))); err != nil {
				return err
			}
		}
		return nil
	}
	wide := o.Format == FormatWide
	limit := o.Columns()
	if wide {
		limit = 0
	}
	return WriteTable(o, o.Out, shown(v.Columns, wide), items, limit)
}

// ShowValue prints a value as JSON or YAML.
func (o Printer) ShowValue(value any) error {
	if o.Format == formatYAML {
		text, err := marshal(value, "")
		if err != nil {
			return err
		}
		return WriteYAML(o.Out, text)
	}
	text, err := EncodeJSON(value, "  ")
	if err != nil {
		return err
	}
	_, err = o.Out.Write(text)
	return err
}

// EncodeJSON is JSON that leaves no control character to a terminal, and none that turns the
// direction of writing. Without an indent it is one line.
func EncodeJSON(value any, indent string) ([]byte, error) {
	text, err := marshal(value, indent)
	if err != nil {
		return nil, err
	}
	// encoding/json escapes the control characters of ASCII except DEL, and none of those after.
	// All of what is found is inside of strings.
	return escapeHidden(text, func(w *bytes.Buffer, r rune) {
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(w, `\u%04x`, unit)
		}
	}), nil
}

// marshal is JSON as encoding/json has it, but for characters of HTML.
func marshal(value any, indent string) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return text.Bytes(), err
}

// escapeHidden writes each character that is not seen, but may change what is, by a function.
func escapeHidden(text []byte, escape func(*bytes.Buffer, rune)) []byte {
	var clean bytes.Buffer
	for _, r := range string(text) {
		if hidden(r) {
			escape(&clean, r)
		} else {
			clean.WriteRune(r)
		}
	}
	return clean.Bytes()
}

// hidden reports whether a character is a control character beyond those of ASCII, or one of the
// format characters, such as the marks that turn the direction of writing.
func hidden(r rune) bool {
	return r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Cf, r)
}

// WriteYAML prints JSON as YAML, its keys in the same order.
func WriteYAML(w io.Writer, text []byte) error {
	// YAML refuses control characters as they are, and the surrogates of JSON.
	text = escapeHidden(text, func(w *bytes.Buffer, r rune) { fmt.Fprintf(w, `\U%08x`, r) })
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return err
	}
	plain(&node)
	var whole bytes.Buffer // the encoder would hide that the output has no reader any more
	encoder := yaml.NewEncoder(&whole)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return err
	}
	if err := encoder.Close(); err != nil {
		return err
	}
	_, err := w.Write(escapeHidden(whole.Bytes(), func(w *bytes.Buffer, r rune) {
		fmt.Fprintf(w, `\U%08x`, r)
	}))
	return err
}

// plain takes away the style that JSON has, but for strings that need escapes.
func plain(node *yaml.Node) {
	node.Style = 0
	if strings.ContainsFunc(node.Value, hidden) {
		node.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		plain(child)
	}
}
