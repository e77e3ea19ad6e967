package cells_test

import (
	"testing"
)

// way is a way to kernels.
type way struct {
	name      string
	open      func(*testing.T) *daemon
	languages []language
	sandbox   bool // execd runs in a sandbox, not in this process
}

// behaviour is a row of the table. The languages that it does not hold for say why, and what holds
// instead. id is a context that the rows of a language share, because a kernel takes long to start:
// the cell "set" has run in it, and "killed kernel" ends it.
type behaviour struct {
	name string
	test func(t *testing.T, d *daemon, l language, id string)
}

var behaviours = []behaviour{
	{"output", output},
	{"result", result},
	{"displays", displays},
	{"much output", muchOutput},
	{"variables persist", variablesPersist},
	{"contexts are isolated", contextsAreIsolated},
	{"cells queue", cellsQueue},
	{"errors", errorsAreReported},
	{"compile errors", compileErrors},
	{"resume", resume},
	{"interrupt", interrupt},
	{"interrupt of a cell that waits", interruptWaiting},
	{"killed kernel", killedKernel},
	{"stateless", stateless},
	{"delete", deleteContexts},
}

func TestCells(t *testing.T) {
	all := []language{python(), bash(), java(), javascript(), typescript(), golang()}
	for _, way := range []way{
		{"local direct", localDirect, all[:1], false},
		{"local server", localServer, all[:1], false},
		{"sandbox direct", func(t *testing.T) *daemon { return enter(t, chosenEngine(t), nil, "sleep", "infinity") }, all, true},
		{"sandbox server", sandboxServer, all, true},
	} {
		t.Run(way.name, func(t *testing.T) {
			// For sandboxes, the service runs in this process. Its local engine ends threads, and
			// with a thread end the Jupyter kernels that were started from it (PR_SET_PDEATHSIG).
			// So the daemons that run in this process come first.
			if way.sandbox {
				t.Parallel()
			}
			d := way.open(t)
			t.Run("unknown language", func(t *testing.T) { unknownLanguage(t, d, way.languages) })
			for _, language := range way.languages {
				t.Run(language.row, func(t *testing.T) {
					id := d.newContext(t, language.name)
					if end := d.run(t, id, language.set).good(t).end(); end.Count != 1 {
						t.Errorf("the first cell's number: %s", end.data)
					}
					for _, b := range behaviours {
						t.Run(b.name, func(t *testing.T) {
							test := b.test
							if e, excepted := language.except[b.name]; excepted {
								t.Logf("exception: %s", e.because)
								test = e.instead
							}
							test(t, d, language, id)
						})
					}
				})
			}
		})
	}
}
