package network

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// dockerChain is the chain that a Docker Engine keeps for the rules of others, in the table filter
// of iptables. The engine makes the policy of FORWARD DROP, and a packet that one table drops is
// dropped, whatever the others say. No forwarded packet gets around that hook, so what containers
// send and get is accepted there, by two rules. What must not pass is dropped by our own table.
const (
	dockerChain  = "DOCKER-USER"
	forwardChain = "FORWARD"
)

// comment marks our rules.
func comment(bridge string) string { return alias + " " + bridge }

// accepts are the two rules, as iptables writes and reads them.
func accepts(bridge string) [][]expr.Any {
	marked := xt.Comment(comment(bridge))
	rest := []expr.Any{&expr.Match{Name: "comment", Info: &marked}, &expr.Counter{}, nft.Accept()}
	return [][]expr.Any{nft.Join(nft.From(bridge), rest), nft.Join(nft.To(bridge), rest)}
}

// addAccepts adds the rules that are missing, if a Docker Engine's chain is in use. They come after
// what the administrator has in the chain and before a RETURN at its end.
func addAccepts(bridge string) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	docker, rules, err := dockerRules(conn)
	if docker == nil || err != nil {
		return err
	}
	// A chain that nothing leads to is about to be removed, which rules in it would prevent.
	if used, err := leadsTo(conn, docker.Table, forwardChain, dockerChain); !used || err != nil {
		return err
	}
	for _, wanted := range accepts(bridge) {
		if slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return isAccept(r, wanted, bridge) }) {
			continue
		}
		rule := &nftables.Rule{Table: docker.Table, Chain: docker, Exprs: wanted}
		if len(rules) > 0 && isReturn(rules[len(rules)-1]) {
			rule.Position = rules[len(rules)-1].Handle
			conn.InsertRule(rule)
		} else {
			conn.AddRule(rule)
		}
	}
	return conn.Flush()
}

// removeAccepts removes the rules of the bridge.
func removeAccepts(bridge string) error {
	return removeMarked(func(text string) bool { return text == comment(bridge) })
}

// sweepAccepts removes the rules of bridges that do not exist any more: their services were killed.
func sweepAccepts() error {
	return removeMarked(func(text string) bool {
		bridge, ours := strings.CutPrefix(text, comment(""))
		_, err := netlink.LinkByName(bridge)
		missing := netlink.LinkNotFoundError{}
		return ours && errors.As(err, &missing)
	})
}

// removeMarked removes the rules with such a comment, each in a transaction of its own: another
// service may have removed one in the meantime, which fails the transaction.
func removeMarked(marked func(comment string) bool) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	docker, rules, err := dockerRules(conn)
	if docker == nil || err != nil {
		return err
	}
	for _, rule := range rules {
		if !marked(commentOf(rule)) {
			continue
		}
		if err := conn.DelRule(rule); err != nil {
			return err
		}
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// dockerRules returns the chain and its rules, or nil when there is none.
func dockerRules(conn *nftables.Conn) (*nftables.Chain, []*nftables.Rule, error) {
	table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
	docker := &nftables.Chain{Name: dockerChain, Table: table}
	rules, err := conn.GetRules(table, docker)
	if errors.Is(err, unix.ENOENT) || err == nil && len(rules) == 0 && !exists(conn, docker) {
		return nil, nil, nil
	}
	return docker, rules, err
}

// leadsTo reports whether a rule of the chain jumps to the other one.
func leadsTo(conn *nftables.Conn, table *nftables.Table, chain, other string) (bool, error) {
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chain})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return slices.ContainsFunc(rules, func(r *nftables.Rule) bool {
		return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
			v, ok := e.(*expr.Verdict)
			return ok && v.Chain == other
		})
	}), err
}

func exists(conn *nftables.Conn, chain *nftables.Chain) bool {
	_, err := conn.ListChain(chain.Table, chain.Name)
	return err == nil
}

// isAccept reports whether a rule is the one of ours that is wanted.
func isAccept(rule *nftables.Rule, wanted []expr.Any, bridge string) bool {
	key := wanted[0].(*expr.Meta).Key
	return commentOf(rule) == comment(bridge) && matchesInterface(rule, key, bridge) &&
		verdictOf(rule) == expr.VerdictAccept
}

// commentOf is the comment of a rule; "" when it has none.
func commentOf(rule *nftables.Rule) string {
	for _, e := range rule.Exprs {
		if m, ok := e.(*expr.Match); ok && m.Name == "comment" {
			if c, ok := m.Info.(*xt.Comment); ok {
				return string(*c)
			}
		}
	}
	return ""
}

// matchesInterface reports whether a rule compares the interface with this one.
func matchesInterface(rule *nftables.Rule, key expr.MetaKey, interfaceName string) bool {
	loaded := map[uint32]bool{}
	for _, e := range rule.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			loaded[e.Register] = e.Key == key
		case *expr.Cmp:
			if loaded[e.Register] && e.Op == expr.CmpOpEq &&
				string(bytes.TrimRight(e.Data, "\x00")) == interfaceName {
				return true
			}
		}
	}
	return false
}

// verdictOf is the verdict of a rule; VerdictContinue when it has none.
func verdictOf(rule *nftables.Rule) expr.VerdictKind {
	for _, e := range rule.Exprs {
		if v, ok := e.(*expr.Verdict); ok {
			return v.Kind
		}
	}
	return expr.VerdictContinue
}

// unconditional reports whether a rule matches every packet.
func unconditional(rule *nftables.Rule) bool {
	return !slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Counter, *expr.Verdict, *expr.Reject, *expr.Log:
			return false
		case *expr.Match:
			return e.Name != "comment"
		case *expr.Target:
			return e.Name != rejectTarget
		}
		return true
	})
}

// rejectTarget is the target of iptables that rejects.
const rejectTarget = "REJECT"

// rejects reports whether a rule rejects what it matches.
func rejects(rule *nftables.Rule) bool {
	return slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		target, ok := e.(*expr.Target)
		_, native := e.(*expr.Reject)
		return native || ok && target.Name == rejectTarget
	})
}

func isReturn(rule *nftables.Rule) bool {
	return unconditional(rule) && verdictOf(rule) == expr.VerdictReturn
}

// Problem says why sandboxes do not reach the network, and what to type; "" when nothing is known
// to be wrong.
func (n *Network) Problem() string {
	n.mu.Lock()
	problem := cmp.Or(n.tableError, n.acceptError)
	n.mu.Unlock()
	if problem != "" {
		return problem
	}
	if forwards, err := readSysctl("ipv4/ip_forward"); err == nil && forwards == "0" {
		return "forwarding of IPv4 is switched off, and sandboxes reach nothing: sysctl -w net.ipv4.ip_forward=1"
	}
	problems, err := droppedBy(n.bridge.name)
	if err != nil {
		return fmt.Sprintf("cannot read the rules of the firewall: %v", err)
	}
	if legacy := legacyDrops(n.bridge.name); legacy != "" {
		problems = append(problems, legacy)
	}
	return strings.Join(problems, "; ")
}

// droppedBy describes the base chains of other tables that drop what is forwarded for the bridge.
func droppedBy(bridge string) ([]string, error) {
	conn, err := connect()
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		chains, err := list(func() ([]*nftables.Chain, error) { return conn.ListChainsOfTableFamily(family) })
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			forwards := c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward
			if !forwards || c.Table.Name == bridge && family == nftables.TableFamilyINet {
				continue
			}
			drops, err := dropsByDefault(conn, c)
			if err != nil {
				return nil, err
			}
			if drops && !permitted(conn, c.Table, chains, bridge) {
				problems = append(problems, dropMessage(c, chains, bridge))
			}
		}
	}
	return problems, nil
}

// dropsByDefault reports whether a chain drops what no rule of it accepts.
func dropsByDefault(conn *nftables.Conn, c *nftables.Chain) (bool, error) {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true, nil
	}
	rules, err := conn.GetRules(c.Table, c)
	if err != nil || len(rules) == 0 {
		return false, err
	}
	last := rules[len(rules)-1]
	return unconditional(last) && (rejects(last) || verdictOf(last) == expr.VerdictDrop), nil
}

// permitted reports whether the table has rules about the bridge, in both directions, that do not
// drop: ours, or the administrator's.
func permitted(conn *nftables.Conn, table *nftables.Table, chains []*nftables.Chain, bridge string) bool {
	var in, out bool
	for _, c := range chains {
		if c.Table.Name != table.Name {
			continue
		}
		rules, err := conn.GetRules(table, c)
		if err != nil {
			continue
		}
		for _, rule := range rules {
			if verdictOf(rule) == expr.VerdictDrop || rejects(rule) {
				continue
			}
			in = in || matchesInterface(rule, expr.MetaKeyIIFNAME, bridge)
			out = out || matchesInterface(rule, expr.MetaKeyOIFNAME, bridge)
		}
	}
	return in && out
}

// dropMessage says what to type against a chain that drops.
func dropMessage(c *nftables.Chain, chains []*nftables.Chain, bridge string) string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(chains, func(other *nftables.Chain) bool {
			return other.Table.Name == c.Table.Name && strings.HasPrefix(other.Name, prefix)
		})
	}
	family := "inet"
	if c.Table.Family == nftables.TableFamilyIPv4 {
		family = "ip"
	}
	var advice string
	switch {
	case c.Table.Name == "firewalld":
		advice = fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-interface=%s && firewall-cmd --reload", bridge)
	case has("ufw-"):
		advice = fmt.Sprintf("ufw route allow in on %[1]s && ufw route allow out on %[1]s", bridge)
	case family == "ip" && c.Table.Name == "filter":
		advice = fmt.Sprintf("iptables -I FORWARD -i %[1]s -j ACCEPT && iptables -I FORWARD -o %[1]s -j ACCEPT", bridge)
	default:
		advice = fmt.Sprintf("nft insert rule %[1]s %[2]s %[3]s iifname %[4]s accept && "+
			"nft insert rule %[1]s %[2]s %[3]s oifname %[4]s accept", family, c.Table.Name, c.Name, bridge)
	}
	return fmt.Sprintf("the chain %s of the nftables table %s %s drops what sandboxes send and get: %s",
		c.Name, family, c.Table.Name, advice)
}
