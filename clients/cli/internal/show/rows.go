package show

import "io"

// Rows prints values as they come: a table that grows, JSON with a line for each, or documents of
// YAML.
type Rows[T any] struct {
	to     Printer
	view   View[T]
	widths []int
}

// NewRows returns rows without one.
func NewRows[T any](to Printer, v View[T]) *Rows[T] { return &Rows[T]{to: to, view: v} }

// Print prints a value as a row.
func (r *Rows[T]) Print(item T) error {
	o := r.to
	switch {
	case o.Quiet || o.Format == FormatName:
		return Text(o, r.view, []T{item})
	case o.Format == formatJSON:
		text, err := EncodeJSON(item, "")
		if err != nil {
			return err
		}
		_, err = o.Out.Write(text)
		return err
	case o.Format == formatYAML:
		if _, err := io.WriteString(o.Out, "---\n"); err != nil {
			return err
		}
		return o.ShowValue(item)
	}
	columns := shown(r.view.Columns, o.Format == FormatWide)
	row := CellsOf(o, columns, item)
	if r.widths == nil {
		titles := make([]string, len(columns))
		for i, c := range columns {
			titles[i] = c.Title
			r.widths = append(r.widths, max(Cells(c.Title), Cells(row[i]), c.Usual))
		}
		if o.Format != FormatWide {
			r.widths = fit(columns, r.widths, o.Columns())
		}
		if err := WriteRow(o, o.Out, titles, r.widths); err != nil {
			return err
		}
	}
	return WriteRow(o, o.Out, row, r.widths)
}
