package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// The values of --output.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name"
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML, formatName}

// output is how results are printed.
type output struct {
	format string
	quiet  bool
}

// registerOutput declares the flags that every command with results has. quiet names what --quiet
// prints of a result; empty means that the command has no such flag.
func (t *tool) registerOutput(command *cobra.Command, quiet string) {
	flags := command.Flags()
	flags.StringVarP(&t.output.format, "output", "o", formatTable,
		"how to print: `FORMAT` is "+strings.Join(formats, ", "))
	if quiet != "" {
		flags.BoolVarP(&t.output.quiet, "quiet", "q", false, "print "+quiet+" only")
	}
	_ = command.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := command.PreRunE
	command.PreRunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains(formats, t.output.format) {
			return usageErrorf("output: must be one of %s, not %q", strings.Join(formats, ", "),
				t.output.format)
		}
		if check != nil {
			return check(c, args)
		}
		return nil
	}
}

// structured reports whether results are printed for programs.
func (o output) structured() bool {
	return !o.quiet && (o.format == formatJSON || o.format == formatYAML)
}

// view is how values of one type are printed.
type view[T any] struct {
	columns []column[T]
	id      func(T) string
	name    func(T) string // what `-o name` prints; nil means the id
}

// showAll prints several values; showOne prints one, which as JSON or YAML is no list.
func showAll[T any](t *tool, v view[T], items []T) error {
	if t.output.structured() {
		if items == nil {
			items = []T{}
		}
		return t.showValue(items)
	}
	return showText(t, v, items)
}

func showOne[T any](t *tool, v view[T], item T) error {
	if t.output.structured() {
		return t.showValue(item)
	}
	return showText(t, v, []T{item})
}

func showText[T any](t *tool, v view[T], items []T) error {
	label := v.id
	if !t.output.quiet && v.name != nil {
		label = v.name
	}
	if t.output.quiet || t.output.format == formatName {
		for _, item := range items {
			if _, err := fmt.Fprintln(t.Stdout, t.clean(label(item))); err != nil {
				return err
			}
		}
		return nil
	}
	wide := t.output.format == formatWide
	limit := t.width()
	if wide {
		limit = 0
	}
	return writeTable(t, t.Stdout, shown(v.columns, wide), items, limit)
}

// showValue prints a value as JSON or YAML.
func (t *tool) showValue(value any) error {
	if t.output.format == formatYAML {
		text, err := marshal(value, "")
		if err != nil {
			return err
		}
		return writeYAML(t.Stdout, text)
	}
	text, err := encodeJSON(value, "  ")
	if err != nil {
		return err
	}
	_, err = t.Stdout.Write(text)
	return err
}

// encodeJSON is JSON that leaves no control character to a terminal, and none that turns the
// direction of writing. Without an indent it is one line.
func encodeJSON(value any, indent string) ([]byte, error) {
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

// writeYAML prints JSON as YAML, its keys in the same order.
func writeYAML(w io.Writer, text []byte) error {
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
