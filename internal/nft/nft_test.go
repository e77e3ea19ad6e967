package nft_test

import (
	"testing"

	"github.com/google/nftables/expr"

	"sandbox.internal/internal/nft"
)

// TestJoin: a rule has all its parts in their order, and a part of another type is no part that is
// left out.
func TestJoin(t *testing.T) {
	from := nft.From("a")
	if rule := nft.Join(from, nft.Drop()); len(rule) != len(from)+1 || rule[0] != from[0] || rule[len(from)].(*expr.Verdict).Kind != expr.VerdictDrop {
		t.Errorf("the rule is %v", rule)
	}
	defer func() {
		if recover() == nil {
			t.Error("a part of another type is left out")
		}
	}()
	nft.Join([][]expr.Any{from}, nft.Accept())
}
