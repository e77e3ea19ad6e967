package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Column is one column of a table of values of one type.
type Column[T any] struct {
	Title string
	Value func(T) string
	// least is to how many columns of the terminal it may shrink; 0 means that it is shown
	// whole, or not at all.
	Least int
	// usual is how many columns of the terminal it has in a table that grows, where what is to
	// come is not known.
	Usual int
	// wide leaves it to `-o wide`.
	Wide bool
}

// gap stands between columns.
const gap = "  "

// WriteTable prints values below titles. Cells are cleaned. With room for fewer columns of the
// terminal than the table needs, long cells are cut, and then the last columns are left out; a
// limit of 0 means that there is room for all.
func WriteTable[T any](o Printer, w io.Writer, columns []Column[T], items []T, limit int) error {
	rows := make([][]string, 0, len(items)+1)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.Title
	}
	rows = append(rows, titles)
	for _, item := range items {
		rows = append(rows, CellsOf(o, columns, item))
	}
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Cells(cell))
		}
	}
	if limit > 0 {
		widths = fit(columns, widths, limit)
	}
	for _, row := range rows {
		if err := WriteRow(o, w, row, widths); err != nil {
			return err
		}
	}
	return nil
}

// CellsOf returns the cells of a value, cleaned.
func CellsOf[T any](o Printer, columns []Column[T], item T) []string {
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = o.Clean(c.Value(item))
	}
	return row
}

// fit shrinks widths until they fit into limit columns. The result has fewer of them when even
// the least is too much.
func fit[T any](columns []Column[T], widths []int, limit int) []int {
	for {
		over := len(gap)*(len(widths)-1) - limit
		for _, w := range widths {
			over += w
		}
		if over <= 0 {
			return widths
		}
		// The widest one gives first.
		widest := -1
		for i, w := range widths {
			if columns[i].Least > 0 && w > columns[i].Least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		switch {
		case widest >= 0:
			widths[widest]--
		case len(widths) > 1:
			widths = widths[:len(widths)-1]
		default:
			return []int{limit}
		}
	}
}

// WriteRow prints the cells for which there are widths.
func WriteRow(o Printer, w io.Writer, row []string, widths []int) error {
	parts := make([]string, len(widths))
	for i, width := range widths {
		parts[i] = pad(o.Shorten(row[i], width), width)
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(parts, gap), " "))
	return err
}

// shown returns the columns of a format.
func shown[T any](columns []Column[T], wide bool) []Column[T] {
	if wide {
		return columns
	}
	return slices.DeleteFunc(slices.Clone(columns), func(c Column[T]) bool { return c.Wide })
}
