package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// column is one column of a table of values of one type.
type column[T any] struct {
	title string
	value func(T) string
	// least is to how many columns of the terminal it may shrink; 0 means that it is shown
	// whole, or not at all.
	least int
	// usual is how many columns of the terminal it has in a table that grows, where what is to
	// come is not known.
	usual int
	// wide leaves it to `-o wide`.
	wide bool
}

// gap stands between columns.
const gap = "  "

// writeTable prints values below titles. Cells are cleaned. With room for fewer columns of the
// terminal than the table needs, long cells are cut, and then the last columns are left out; a
// limit of 0 means that there is room for all.
func writeTable[T any](t *tool, w io.Writer, columns []column[T], items []T, limit int) error {
	rows := make([][]string, 0, len(items)+1)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	rows = append(rows, titles)
	for _, item := range items {
		rows = append(rows, cellsOf(t, columns, item))
	}
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], cells(cell))
		}
	}
	if limit > 0 {
		widths = fit(columns, widths, limit)
	}
	for _, row := range rows {
		if err := writeRow(t, w, row, widths); err != nil {
			return err
		}
	}
	return nil
}

func cellsOf[T any](t *tool, columns []column[T], item T) []string {
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = t.clean(c.value(item))
	}
	return row
}

// fit shrinks widths until they fit into limit columns. The result has fewer of them when even
// the least is too much.
func fit[T any](columns []column[T], widths []int, limit int) []int {
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
			if columns[i].least > 0 && w > columns[i].least && (widest < 0 || w > widths[widest]) {
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

// writeRow prints the cells for which there are widths.
func writeRow(t *tool, w io.Writer, row []string, widths []int) error {
	parts := make([]string, len(widths))
	for i, width := range widths {
		parts[i] = pad(t.shorten(row[i], width), width)
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(parts, gap), " "))
	return err
}

// shown returns the columns of a format.
func shown[T any](columns []column[T], wide bool) []column[T] {
	if wide {
		return columns
	}
	return slices.DeleteFunc(slices.Clone(columns), func(c column[T]) bool { return c.wide })
}
