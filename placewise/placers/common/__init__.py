"""What several placers need: equal devices, resident bytes of groups, rules, and fitting live memory."""
