package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

// find returns the sandbox that a name means: the one with this id, the one with this
// metadata.name, or the only one whose id begins so. Sandboxes that have ended count only where
// no other is meant; of several with the same metadata.name that have ended, the newest does.
func (t *tool) find(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, usageErrorf("the name of a sandbox is empty")
	}
	if uuid.Validate(name) == nil {
		return c.client.Connect(ctx, name)
	}
	id, err := t.lookUp(ctx, name)
	if err != nil {
		return nil, err
	}
	return c.client.Connect(ctx, id)
}

// lookUp returns the id that a name or the beginning of an id means.
func (t *tool) lookUp(ctx context.Context, name string) (string, error) {
	c, err := t.connect()
	if err != nil {
		return "", err
	}
	var named, begun []sandbox.Info
	for info, err := range c.client.List(ctx, nil) {
		if err != nil {
			return "", err
		}
		if nameOf(info) == name {
			named = append(named, info)
		} else if strings.HasPrefix(info.ID, name) {
			begun = append(begun, info)
		}
	}
	matches := named
	if len(matches) == 0 {
		matches = begun
	}
	if live := slices.DeleteFunc(slices.Clone(matches), ended); len(live) > 0 {
		matches = live
	} else if len(named) > 0 {
		matches = named[:1] // the list begins with the newest
	}
	switch len(matches) {
	case 0:
		return "", fmt.Errorf("there is no sandbox %q", name)
	case 1:
		return matches[0].ID, nil
	}
	return "", ambiguous(name, matches)
}

// maxNamed is how many of the sandboxes that a name could mean are listed.
const maxNamed = 10

func ambiguous(name string, matches []sandbox.Info) error {
	var list []string
	for _, m := range matches[:min(len(matches), maxNamed)] {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", m.ID, nameOf(m),
			m.Status.State)))
	}
	if more := len(matches) - maxNamed; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%q is ambiguous: %s", name, strings.Join(list, ", "))
}

// findAll returns the sandboxes that several names mean, each once.
func (t *tool) findAll(ctx context.Context, names []string) ([]*sandbox.Sandbox, error) {
	var found []*sandbox.Sandbox
	seen := map[string]bool{}
	for _, name := range names {
		box, err := t.find(ctx, name)
		if err != nil {
			return nil, err
		}
		if !seen[box.ID()] {
			seen[box.ID()] = true
			found = append(found, box)
		}
	}
	return found, nil
}

// completeNames offers sandboxes for the first arguments; most is how many there may be, -1 for
// any number.
func (t *tool) completeNames(most int) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		connection, err := t.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(c.Context(), versionTimeout)
		defer cancel()
		var names []string
		for info, err := range connection.client.List(ctx, nil) {
			if err != nil {
				return names, cobra.ShellCompDirectiveError
			}
			if ended(info) {
				continue
			}
			names = append(names, cobra.CompletionWithDesc(t.Clean(label(info)),
				t.Clean(info.Status.State+" "+info.Image.URI)))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
