package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

func snapshotTreeCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "tree [flags] SANDBOX",
		Short: "Draw the snapshots and sandboxes that a sandbox is related to",
		Long: "Draw the snapshots and sandboxes that a sandbox is related to: below each are\n" +
			"those whose files come from it. SANDBOX itself has a *.",
		Example:           "  sandbox snapshot tree box",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			lineage, err := box.Lineage(c.Context())
			if err != nil {
				return err
			}
			if t.Printer.Structured() {
				return t.ShowValue(lineage)
			}
			for _, line := range t.drawLineage(lineage, box.ID()) {
				if _, err := fmt.Fprintln(t.Stdout, line); err != nil {
					return err
				}
			}
			if lineage.Truncated {
				_, err = fmt.Fprintln(t.Stderr, "there are more snapshots or sandboxes than are shown")
			}
			return err
		},
	}
	t.registerOutput(command, "ids")
	return command
}

// treeWidth is how many columns a drawing has at most.
const treeWidth = 80

// relative is a snapshot or a sandbox in a drawing.
type relative struct {
	text   string
	parent string // id of another one; empty for none
	below  []string
}

// drawLineage returns the lines of a drawing, in which each snapshot and sandbox is once.
func (t *tool) drawLineage(lineage sandbox.Lineage, marked string) (lines []string) {
	all, order := map[string]*relative{}, []string(nil)
	add := func(id, text string) {
		all[id] = &relative{text: text}
		order = append(order, id)
	}
	for _, s := range lineage.Sandboxes {
		mark := ""
		if s.ID == marked {
			mark = " *"
		}
		add(s.ID, fmt.Sprintf("sandbox %s %s%s", shortID(s.ID), t.Clean(s.State), mark))
	}
	for _, s := range lineage.Snapshots {
		text := fmt.Sprintf("%s %s, %s", shortID(s.ID), t.Clean(s.Status.State), bytesOf(s.Size))
		if name := optional(s.Name); name != "" {
			text += " " + t.Clean(name)
		}
		add(s.ID, text)
	}
	for _, s := range lineage.Sandboxes {
		attach(all, s.ID, optional(s.SnapshotID), optional(s.ParentID))
	}
	for _, s := range lineage.Snapshots {
		attach(all, s.ID, optional(s.ParentID), s.SandboxID)
	}
	for _, id := range order {
		if parent := all[all[id].parent]; parent != nil {
			parent.below = append(parent.below, id)
		}
	}
	for _, id := range order {
		if all[id].parent == "" {
			lines = append(lines, cut(all[id].text))
			lines = t.drawBelow(lines, all, id, "")
		}
	}
	return lines
}

// attach puts one below the first of the others that is there and is not below it.
func attach(all map[string]*relative, id string, others ...string) {
	for _, other := range others {
		above := other
		for all[above] != nil && above != id {
			above = all[above].parent
		}
		if all[other] != nil && above != id {
			all[id].parent = other
			return
		}
	}
}

func (t *tool) drawBelow(lines []string, all map[string]*relative, id, indent string) []string {
	below := all[id].below
	for i, child := range below {
		branch, next := "├─ ", "│  "
		if i == len(below)-1 {
			branch, next = "└─ ", "   "
		}
		if t.ASCII {
			branch, next = strings.NewReplacer("├", "|", "└", "`", "─", "-").Replace(branch), strings.ReplaceAll(next, "│", "|")
		}
		lines = append(lines, cut(indent+branch+all[child].text))
		lines = t.drawBelow(lines, all, child, indent+next)
	}
	return lines
}

// cut bounds the columns of a line.
func cut(line string) string {
	if runes := []rune(line); len(runes) > treeWidth {
		return string(runes[:treeWidth-3]) + "..."
	}
	return line
}
