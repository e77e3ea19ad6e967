package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"sandbox.internal/bench/measure"
)

// The picture, in units of SVG.
const (
	rowHeight  = 22
	topHeight  = 46
	nameWidth  = 140
	ratioWidth = 520
	lineWidth  = 150
	gap        = 20
	textWidth  = 70
)

// scale places ratios from 1/100 to 100 times the floor on a logarithmic axis.
func scale(ratio float64) float64 {
	at := (math.Log10(max(ratio, 0.01)) + 2) / 4
	return nameWidth + ratioWidth*min(at, 1)
}

// picture draws each row's ratio to its floor, with its target where that is a ratio, and the
// ratios of earlier runs as a line that ends with this one.
func (r Report) picture(history []summary) string {
	var rows []rowResults
	for _, row := range r.Rows {
		if row.Ratio != nil && *row.Ratio > 0 {
			rows = append(rows, row)
		}
	}
	width := nameWidth + ratioWidth + textWidth + lineWidth + gap
	height := topHeight + rowHeight*len(rows) + gap
	var svg strings.Builder
	fmt.Fprintf(&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&svg, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	text := func(x, y float64, anchor, fill, content string) {
		fmt.Fprintf(&svg, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y,
			anchor, fill, html.EscapeString(content))
	}
	text(nameWidth, 16, "start", "#222222",
		"Ratio to the floor, measured in the same run. Green: target met; red: missed; bar: the target, where it is a ratio.")
	for _, mark := range []float64{0.01, 0.1, 1, 10, 100} {
		color := "#dddddd"
		if mark == 1 {
			color = "#888888"
		}
		fmt.Fprintf(&svg, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n",
			scale(mark), scale(mark), topHeight-8, height-gap, color)
		text(scale(mark), topHeight-14, "middle", "#666666", measure.Number(mark)+"×")
	}
	text(float64(width-lineWidth-gap+4), topHeight-14, "start", "#666666", "earlier runs")
	for i, row := range rows {
		middle := float64(topHeight + rowHeight*i + rowHeight/2)
		fill := "#c0392b"
		if row.Target.Met {
			fill = "#2e8b57"
		}
		text(nameWidth-10, middle+4, "end", "#222222", row.Name)
		from, to := min(scale(1), scale(*row.Ratio)), max(scale(1), scale(*row.Ratio))
		fmt.Fprintf(&svg, `<rect x="%.1f" y="%.1f" width="%.1f" height="10" fill="%s"/>`+"\n", from,
			middle-5, max(to-from, 2), fill)
		if row.Target.Of == measure.OfRatio {
			fmt.Fprintf(&svg, `<rect x="%.1f" y="%.1f" width="2" height="18" fill="#222222"/>`+"\n",
				scale(row.Target.Limit)-1, middle-9)
		}
		text(nameWidth+ratioWidth+8, middle+4, "start", "#222222", measure.Number(*row.Ratio)+"×")
		svg.WriteString(sparkline(append(row.earlier(history), *row.Ratio),
			float64(width-lineWidth-gap), middle))
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}

// sparkline draws figures from the least to the largest of them; the last one has a dot.
func sparkline(figures []float64, left, middle float64) string {
	const height = rowHeight - 8
	least, most := slices.Min(figures), slices.Max(figures)
	points := make([]string, len(figures))
	var x, y float64
	for i, figure := range figures {
		x, y = left+lineWidth, middle
		if len(figures) > 1 {
			x = left + lineWidth*float64(i)/float64(len(figures)-1)
		}
		if most > least {
			y = middle + height/2 - height*(figure-least)/(most-least)
		}
		points[i] = fmt.Sprintf("%.1f,%.1f", x, y)
	}
	return fmt.Sprintf(
		`<polyline points="%s" fill="none" stroke="#4477aa"/><circle cx="%.1f" cy="%.1f" r="2.5" fill="#4477aa"/>`+"\n", strings.Join(points, " "), x, y)
}
