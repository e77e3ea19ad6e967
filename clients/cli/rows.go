package cli

import "io"

// rows prints values as they come: a table that grows, JSON with a line for each, or documents of
// YAML.
type rows[T any] struct {
	t      *tool
	view   view[T]
	widths []int
}

func newRows[T any](t *tool, v view[T]) *rows[T] { return &rows[T]{t: t, view: v} }

func (r *rows[T]) print(item T) error {
	t := r.t
	switch {
	case t.output.quiet || t.output.format == formatName:
		return showText(t, r.view, []T{item})
	case t.output.format == formatJSON:
		text, err := encodeJSON(item, "")
		if err != nil {
			return err
		}
		_, err = t.Stdout.Write(text)
		return err
	case t.output.format == formatYAML:
		if _, err := io.WriteString(t.Stdout, "---\n"); err != nil {
			return err
		}
		return t.showValue(item)
	}
	columns := shown(r.view.columns, t.output.format == formatWide)
	row := cellsOf(t, columns, item)
	if r.widths == nil {
		titles := make([]string, len(columns))
		for i, c := range columns {
			titles[i] = c.title
			r.widths = append(r.widths, max(cells(c.title), cells(row[i]), c.usual))
		}
		if t.output.format != formatWide {
			r.widths = fit(columns, r.widths, t.width())
		}
		if err := writeRow(t, t.Stdout, titles, r.widths); err != nil {
			return err
		}
	}
	return writeRow(t, t.Stdout, row, r.widths)
}
