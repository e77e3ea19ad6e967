package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

// The actions of the tool for checkpoints.
const (
	takeAction     = "take"
	listAction     = "list"
	diffAction     = "diff"
	rollbackAction = "rollback"
	forkAction     = "fork"
	deleteAction   = "delete"
)

// maxForks bounds how many sandboxes one call makes. The contract has a higher bound.
const maxForks = 10

// maxChanged is how many files one comparison shows.
const maxChanged = 200

// addCheckpoint adds the tool for the files of sandboxes at other times.
func (t *tools) addCheckpoint(server *mcp.Server) {
	addStructured(server, &mcp.Tool{Name: "checkpoint", InputSchema: checkpointSchema(),
		Description: "Keep a sandbox's files (take), go back to them (rollback ends its processes), " +
			"compare them (diff), or copy it (fork).",
		Annotations: changes("Checkpoints of a sandbox", true, false, false)}, t.checkpoint)
}

type checkpointInput struct {
	boxInput
	Action     string `json:"action"`
	Checkpoint string `json:"checkpoint,omitempty" jsonschema:"for rollback, diff, delete"`
	To         string `json:"to,omitempty" jsonschema:"diff: a later checkpoint; default: compares with the image"`
	Name       string `json:"name,omitempty"`
	Count      int    `json:"count,omitempty" jsonschema:"forks, up to 10"`
}

// checkpointSchema is the schema of checkpointInput, with the actions.
func checkpointSchema() *jsonschema.Schema {
	schema, err := jsonschema.For[checkpointInput](nil)
	if err != nil {
		panic(err) // the type is fixed
	}
	schema.Properties["action"].Enum = []any{takeAction, listAction, diffAction, rollbackAction, forkAction, deleteAction}
	return schema
}

type checkpointOutput struct {
	Checkpoints []checkpoint `json:"checkpoints,omitempty"`
	Sandboxes   []boxOutput  `json:"sandboxes,omitempty"`
	Changed     []changed    `json:"changed,omitempty"`
	Truncated   bool         `json:"truncated,omitempty"`
}

// changed is a file that a comparison found.
type changed struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
	Size int64  `json:"size"`
}

type checkpoint struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Created string `json:"created"`
}

func checkpointOf(s sandbox.Snapshot) checkpoint {
	name := ""
	if s.Name != nil {
		name = short(*s.Name, maxName)
	}
	return checkpoint{s.ID, name, s.CreatedAt.Format(time.RFC3339)}
}

func (t *tools) checkpoint(ctx context.Context, _ call, in checkpointInput) (content, checkpointOutput, error) {
	var none checkpointOutput
	box, err := t.box(ctx, in.Sandbox)
	if err != nil {
		return nil, none, err
	}
	if in.Checkpoint == "" && (in.Action == rollbackAction || in.Action == diffAction || in.Action == deleteAction) {
		return nil, none, fmt.Errorf("checkpoint must be the id of one: action list shows them")
	}
	switch in.Action {
	case takeAction:
		return takeCheckpoint(ctx, box, in.Name)
	case listAction:
		return listCheckpoints(ctx, box)
	case rollbackAction:
		if err := box.Rollback(ctx, in.Checkpoint); err != nil {
			return nil, none, err
		}
		return text("The files are those of checkpoint %s; the processes of before have ended.", in.Checkpoint), none, nil
	case forkAction:
		return t.fork(ctx, box, max(in.Count, 1))
	case diffAction:
		return t.diff(ctx, in.Checkpoint, in.To)
	}
	client, err := t.client(ctx)
	if err == nil {
		err = client.DeleteSnapshot(ctx, in.Checkpoint)
	}
	if err != nil {
		return nil, none, err
	}
	return text("deleted"), none, nil
}

func takeCheckpoint(ctx context.Context, box *sandbox.Sandbox, name string) (content, checkpointOutput, error) {
	taken, err := box.Snapshot(ctx, &sandbox.SnapshotOptions{Name: name})
	if err != nil {
		return nil, checkpointOutput{}, err
	}
	return text("checkpoint: %s", taken.ID), checkpointOutput{Checkpoints: []checkpoint{checkpointOf(taken)}}, nil
}

func listCheckpoints(ctx context.Context, box *sandbox.Sandbox) (content, checkpointOutput, error) {
	var out checkpointOutput
	var shown lines
	for s, err := range box.Snapshots(ctx) {
		if err != nil {
			return nil, out, err
		}
		if s.Status.State != sandbox.SnapshotReady {
			continue
		}
		one := checkpointOf(s)
		if len(out.Checkpoints) == maxListed || !shown.add("%s name=%q created=%s\n", one.ID, one.Name, one.Created) {
			fmt.Fprintf(&shown, "There are more than %d; these are the newest.\n", len(out.Checkpoints))
			break
		}
		out.Checkpoints = append(out.Checkpoints, one)
	}
	if len(out.Checkpoints) == 0 {
		return text("There are no checkpoints of this sandbox."), out, nil
	}
	return text("%s", shown.String()), out, nil
}

// diff shows the files in which a checkpoint differs from its image, or another one from it. Paths
// are quoted, since a program in the sandbox chooses them.
func (t *tools) diff(ctx context.Context, id, to string) (content, checkpointOutput, error) {
	var out checkpointOutput
	client, err := t.client(ctx)
	if err != nil {
		return nil, out, err
	}
	diff, err := client.DiffSnapshot(ctx, id, &sandbox.SnapshotDiffOptions{To: to, Limit: maxChanged})
	if err != nil {
		return nil, out, err
	}
	if len(diff.Items) == 0 {
		return text("Nothing has changed."), out, nil
	}
	var shown lines
	out.Truncated = diff.Truncated
	for _, file := range diff.Items {
		if !shown.add("%s %q %d\n", file.Kind, file.Path, file.Size) {
			out.Truncated = true
			break
		}
		out.Changed = append(out.Changed, changed{file.Kind, file.Path, file.Size})
	}
	if out.Truncated {
		fmt.Fprintf(&shown, "[There are more than %d; these are the first.]\n", len(out.Changed))
	}
	return text("%s", shown.String()), out, nil
}

// fork makes sandboxes of the files of another one. Those that were made are in the answer, also
// where others were not.
func (t *tools) fork(ctx context.Context, box *sandbox.Sandbox, count int) (content, checkpointOutput, error) {
	var out checkpointOutput
	if count > maxForks {
		return nil, out, fmt.Errorf("count must be at most %d, not %d", maxForks, count)
	}
	forks, err := box.Fork(ctx, &sandbox.ForkOptions{Count: count, Wait: t.patience})
	if err != nil {
		return nil, out, err
	}
	var shown lines
	var failures []error
	for _, fork := range forks {
		if fork.Sandbox == nil {
			failures = append(failures, fork.Err)
			continue
		}
		made := outputOf(fork.Sandbox.Info())
		out.Sandboxes = append(out.Sandboxes, made)
		shown.add("id: %s state: %s expires: %s\n", made.ID, made.State, made.Expires)
	}
	if len(out.Sandboxes) == 0 {
		return nil, out, errors.Join(failures...)
	}
	if len(failures) > 0 {
		shown.add("%d could not be made: %v\n", len(failures), failures[0])
	}
	return text("%s", shown.String()), out, nil
}
